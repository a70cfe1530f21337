"""Engines that take the steps of local SGD: one interface, any `nn.Module`. torch is loaded with an engine."""
