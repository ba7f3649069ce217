"""What the machine under the models is doing."""
