"""`ElasticEstimator`: an algorithm of the user's with the face of scikit-learn."""
