"""Floor 2: watching a job: its history, TensorBoard, and pictures of the chunks moving."""
