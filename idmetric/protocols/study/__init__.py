"""Studies with people: questions about pairs or triplets of images, their answers, and models against them.

`items` draws the questions, `study` keeps them, `votes` reads answers, `labels` makes a table of them, and `protocol`
compares models with that table. The page that people see is made by `idmetric.report.study`.
"""
