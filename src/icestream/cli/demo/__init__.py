"""Demo: `icestream demo`, from generated events or through a real broker."""
