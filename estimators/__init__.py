"""Estimators with the face of scikit-learn: `from estimators import ChicleSVM`."""
