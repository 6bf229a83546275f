"""Studies with people: questions about pairs or triplets of images, their answers, and models against them."""
