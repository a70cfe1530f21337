"""Floor 2: the public pair `Trainer`/`Solver`, and the algorithms that come with Chicle."""
