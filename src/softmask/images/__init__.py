"""Images: decoding, folders of classes, splits into training, validation and test."""
