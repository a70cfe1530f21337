"""What a fit of a linear model is trained on: rows and targets, weights of classes, and duals of the last fit."""
