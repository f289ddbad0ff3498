"""A stand-in for the vendor's `modelarts` wheel, which nobody can install from an index: the part of its documented
surface that is about training jobs, over HTTP. Written from the vendor's SDK reference and from public code that calls
the wheel, with the quirks that these show; where both are silent, the plainest reading is taken. Standard library
only, and for Python 3.7 on, as the wheel itself."""

print("ModelArts SDK stand-in is loaded")
