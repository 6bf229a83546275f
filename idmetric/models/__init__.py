"""The metrics: `IDSim`, `NearID`, `VisIDEmbed`, `Backbone`, and what they share."""
