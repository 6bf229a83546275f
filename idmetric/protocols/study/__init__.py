"""Studies with people: questions about pairs or triplets of images, their answers, and models against them.

`study` draws the questions and keeps them, `votes` reads answers and makes a table of labels, and `protocol` compares
models with that table. The page that people see is made by `idmetric.report.study`.
"""
