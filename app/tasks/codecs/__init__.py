"""Uploaded pictures: opened, held and encoded in processes that can be killed.

    pool      runs functions named "module:function" in codec processes      (parent)
    picture   a decoded picture in shared memory, within a budget            (parent and child)
    sandbox   what runs inside a codec process                               (child)
    sniff     which format the bytes are                                     (child)
    limits    what a picture may ask for, its processor time included        (child)
    headers   the scans of a JPEG and the kind of a TIFF                     (child)
    decode    bytes to upright 8-bit RGB or RGBA                             (child)
    encode    arrays to PNG, WebP or JPEG                                    (child)

The API process never opens uploaded bytes: it hands them to `CodecPool.submit` and holds the
decoded picture as a file descriptor. A new image task adds functions in its own package only.
"""
