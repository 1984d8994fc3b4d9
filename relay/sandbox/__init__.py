"""A stand-in of the whole video service, to develop and test against."""
