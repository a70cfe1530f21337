"""An elastic training loop around a model, an optimizer and a data set of PyTorch's.

    import chicle_elastic.torch as elastic

    with elastic.loop(model, optimizer, dataset, batch_size=256, seed=0) as loop:
        for batch in loop.epochs(10):
            loss = criterion(model(batch.x), batch.y)
            loop.step(loss)

Started by `chicle run train.py`, by `python -m chicle_elastic.launch` or by TorchX, the script trains on nodes that
come and go; started by `python`, it trains alone. `schedule` decides, and is pure; `seat` is the place of this process
among the nodes, `state` the bytes that a joining node receives, and `elastic_loop` the shell. How agents find each
other, lead and count is not known here.
"""

from chicle_elastic.torch.batches import Batch
from chicle_elastic.torch.elastic_loop import Loop, loop

__all__ = ["Batch", "Loop", "loop"]
