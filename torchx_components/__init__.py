"""Launch components for TorchX, and the programs that they start: `torchx run -s local_cwd chicle.svm -j 2:3 ...`.

`chicle` has the components; it is the only file here that imports torchx. What they start on the nodes (`anchor`,
`node`) runs without it.
"""
