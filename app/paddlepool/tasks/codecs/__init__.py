"""Decodes, holds and encodes uploaded pictures, in codec processes, which can be killed.

    pool      runs functions named "module:function" in codec processes      (parent)
    picture   a decoded picture in shared memory, within a limit for all     (parent and child)
    program   where that program is, and its environment                     (parent)
    sandbox   the program of a codec process                                 (child)
    reading   decodes a picture for the function of a task                   (child)
    limits    accepted formats, and limits on size and processor time        (parent and child)
    decode    bytes to upright 8-bit RGB or RGBA, after checks of the header (child)
    colours   any mode and ICC profile to 8-bit sRGB                         (child)
    encode    arrays to PNG, WebP or JPEG                                    (child)

The API process never decodes uploaded bytes: it passes them to `CodecPool.submit` and holds the
decoded picture as a file descriptor. A task that needs only arrays of a picture calls
`Codecs.read_picture`.
"""
