"""ModelArts, by its APIs V1 and V2, with the vendor's SDK or its `modelarts` wheel.

Begin with `kind.py` (what is known before anything connects) and `platform.py` (the adapter). `request.py` makes the
bodies, `jobs.py` sends them, `catalog.py` asks what the region offers, `image_rules.py` has the rules of images and
of `ma-pre-start.sh`, `package.py` reads an unpacked ais-bench package. The registry, and the platform `local`, import
this package.
"""
