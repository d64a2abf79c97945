"""Synthetic talking faces for the demo model: drawn faces and one public-domain portrait, opened by a warp, driven by synthesised speech.

`paint.py` and `portrait.py` make still faces, `mouth.py` opens their mouths, `speech.py` says how far and when, `clips.py` puts the four
together.
Everything is plain torch on any device, so that the training machine can make its own data; only `portrait.py` and `speech.py` need other
packages.

Face coordinates, used by all of them: origin midway between the brow centres, x to the right of the picture, y down, unit = half the
distance
between the brow centres. An upright adult face then has its nose centre near (0, 1.15), its mouth near (0, 1.95) and its chin near (0,
3.1).
"""
