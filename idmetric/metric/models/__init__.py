"""The metrics `IDSim`, `NearID`, `VisIDEmbed` and `Backbone`, and their base class."""
