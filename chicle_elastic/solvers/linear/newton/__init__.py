"""Newton's method on chunks: every task sends sums over its rows, every trainer takes the same step.

A step needs no more passes over the data with sixteen tasks than with one, because sums of losses, gradients and
second derivatives are the same whichever task owns a row. `state` is what the tasks have in common, and where each sum
lies; `steps` how the trainer goes on from the sums of a pass (pure, without a row in sight, with
`conjugate`), `passes` what one task adds up over its rows, and `directions` the linear algebra. Wide rows of few values
are sent to all tasks, which take the same steps alone (`few_rows`). Any loss of `losses` will do, also of a classifier.
A softmax ties the weights of all classes together; what is special in its steps are methods of its problem
(`multinomial.problem`).
"""
