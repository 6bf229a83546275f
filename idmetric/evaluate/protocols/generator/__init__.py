"""How good is a generator of pictures of given subjects? See `protocol`."""
