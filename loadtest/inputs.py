"""Inputs of simulated users: generated pictures and fixed sentences, the same on every run."""

import io
import random
from dataclasses import dataclass

from PIL import Image, ImageDraw, ImageFilter

SIZES = ((640, 480), (1280, 960), (2304, 1728))
"""0.3, 1.2 and 4 megapixels."""

SENTENCES = (
    "今天的天气真好，心情也跟着好了起来！",
    "排队两个小时，结果告诉我卖完了，太气人了。",
    "会议改到下午三点，请大家准时参加。",
    "天哪，你居然一个人把这些全做完了？",
    "外婆走了以后，院子里的花再也没有人浇。",
    "走夜路的时候总觉得后面有人跟着，我不敢回头。",
    "好开心",
    "又下雨",
    "孩子第一次自己骑车，摔了三跤还是笑着站起来，我在后面又心疼又骄傲。",
    "这家店的服务员态度恶劣，菜里有头发，退款还要等七天，以后再也不会来了！！！",
    "列车因故晚点四十分钟，请您在候车室耐心等待，注意广播通知。",
    "没想到在机场碰到了十年没见的老同学，我们俩都愣住了。",
    "昨晚梦见自己考试迟到，惊醒的时候一身冷汗，"
    "看了看表才凌晨三点，之后就再也睡不着了，一直翻来覆去到天亮。",
    "谢谢你们的生日惊喜[爱你]我哭得稀里哗啦的😭❤️",
)


@dataclass(frozen=True, slots=True)
class Picture:
    """A JPEG and its size in pixels."""

    data: bytes
    width: int
    height: int


def draw_picture(width: int, height: int, *, seed: int) -> Picture:
    """A bright figure on a soft background with film grain: as many bytes as a photo."""
    generator = random.Random(seed)

    def colour() -> tuple[int, int, int]:
        return generator.randrange(256), generator.randrange(256), generator.randrange(256)

    rough = Image.new("RGB", (8, 6))
    rough.putdata([colour() for _ in range(48)])
    image = rough.resize((width, height), Image.Resampling.BICUBIC)
    draw = ImageDraw.Draw(image)
    left, top = width * generator.uniform(0.2, 0.4), height * generator.uniform(0.1, 0.2)
    draw.ellipse((left, top, left + width * 0.3, top + height * 0.35), fill=colour())
    draw.ellipse((left - width * 0.1, top + height * 0.3, left + width * 0.4, height), colour())
    image = image.filter(ImageFilter.GaussianBlur(2))
    grain = Image.frombytes("L", (512, 512), generator.randbytes(512 * 512))
    grain = grain.resize((width, height)).convert("RGB")
    stream = io.BytesIO()
    Image.blend(image, grain, 0.08).save(stream, "JPEG", quality=85)
    return Picture(stream.getvalue(), width, height)


def draw_pictures() -> tuple[Picture, ...]:
    """Two pictures of each size."""
    return tuple(
        draw_picture(width, height, seed=seed)
        for seed, (width, height) in enumerate(SIZES * 2, start=1)
    )
