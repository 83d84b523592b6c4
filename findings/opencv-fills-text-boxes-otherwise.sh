#!/bin/sh
# OpenCV 5 fills a slanted quadrangle otherwise than OpenCV 4, which changes the scores of text boxes.
#
# Guess: fillPoly() with corners that are whole numbers sets the same pixels in every version. Seen: of
# 200 rectangles that are turned by 1 to 40 degrees, OpenCV 5.0.0 fills 67 otherwise than 4.10.0. It
# sets no further pixel and leaves out 148 along slanted edges. A detector of the family DB (PP-OCR)
# scores a box by the mean probability inside such a polygon and drops it below a threshold: the same
# model and the same code give other scores, and a box near the threshold comes or goes.
set -eu
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cat > "$scratch/masks.py" <<'PYTHON'
import sys

import cv2
import numpy as np

masks = []
for number in range(200):
    angle = np.deg2rad(1 + number % 40)
    wide, tall = 20 + number % 60, 6 + number % 11
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    corners = np.array([(0, 0), (wide, 0), (wide, tall), (0, tall)]) @ turn.T + 70
    mask = np.zeros((160, 160), np.uint8)
    cv2.fillPoly(mask, [corners.astype(np.int32)], 1)
    masks.append(mask)
np.save(sys.argv[1], np.array(masks))
PYTHON
for version in 4.10.0.84 5.0.0.93; do
    python3 -m venv "$scratch/$version"
    "$scratch/$version/bin/pip" install --quiet "opencv-python-headless==$version" numpy==2.2.6
    "$scratch/$version/bin/python" "$scratch/masks.py" "$scratch/$version.npy"
done
"$scratch/5.0.0.93/bin/python" - "$scratch/4.10.0.84.npy" "$scratch/5.0.0.93.npy" <<'PYTHON'
import sys

import numpy as np

before, after = (np.load(file).astype(int) for file in sys.argv[1:])
other = (before != after).any(axis=(1, 2))
more = (after > before).any(axis=(1, 2))
print(f"OpenCV 4.10.0.84 and 5.0.0.93: {other.sum()} of {len(other)} quadrangles differ,")
print(f"{more.sum()} have a pixel more, {(before > after).sum()} pixels are missing in all")
assert (other.sum(), more.sum(), (before > after).sum()) == (67, 0, 148), "this has changed"
PYTHON
