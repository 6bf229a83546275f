"""Sharp, well covered frames of videos and folders of frames."""
