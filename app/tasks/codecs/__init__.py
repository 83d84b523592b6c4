"""Uploaded pictures: decoded, held and encoded in processes that can be killed.

    pool      runs functions named "module:function" in codec processes      (parent)
    picture   a decoded picture in shared memory, within a budget            (parent and child)
    sandbox   what runs inside a codec process                               (child)
    sniff     detects the format of the bytes                                (child)
    limits    limits on a picture, processor time included                   (child)
    headers   checks the scans of a JPEG and the kind of a TIFF              (child)
    decode    bytes to upright 8-bit RGB or RGBA                             (child)
    encode    arrays to PNG, WebP or JPEG                                    (child)

The API process never decodes uploaded bytes: it passes them to `CodecPool.submit` and holds the
decoded picture as a file descriptor. A new image task adds functions in its own package only.
"""
