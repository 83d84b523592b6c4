"""Uploaded pictures: opened, held and encoded in processes that can be killed.

    pool      runs functions named "module:function" in codec processes      (parent)
    picture   a decoded picture in shared memory, within a budget            (parent and child)
    sandbox   what runs inside a codec process                               (child)
    sniff     which format the bytes are                                     (child)
    headers   size, chunk lengths and costs, before any decoder runs         (child)
    jpeg_header   the same of a JPEG, and its scans                          (child)
    decode    bytes to upright 8-bit RGB or RGBA                             (child)
    encode    arrays to PNG, WebP or JPEG                                    (child)

The API process never opens uploaded bytes: it hands them to `CodecPool.submit` and holds the
decoded picture as a file descriptor. A new image task adds functions in its own package only.
"""
