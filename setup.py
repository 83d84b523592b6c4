"""What pyproject.toml cannot say: the wheel brings the models, and its README's links are absolute.

The models lie in model_repo/, outside the package: a checkout serves and changes them there.
"""

import re
import tomllib
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
MODELS = {"emotion": 3, "mnist": 1, "u2netp": 1}
"""The version of each model that travels in the wheel; older ones stay in the checkout."""


def shipped() -> dict[str, str]:
    """Map each model file's path in the checkout to its path in the wheel."""
    files = []
    for name, version in MODELS.items():
        model = Path("model_repo", name)
        files += [model / "config.toml", model / "MODEL_CARD.md"]
        files += sorted(
            file.relative_to(ROOT) for file in (ROOT / model / str(version)).glob("[!.]*")
        )
    packed = Path("paddlepool/models/shipped")
    return {str(file): str(packed.joinpath(*file.parts[1:])) for file in files}


class WithModels(build_py):
    """Builds the package and copies the models into it, except where it is installed editable."""

    def get_source_files(self) -> list[str]:
        return [*super().get_source_files(), *self._models()]

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        built = [str(Path(self.build_lib, target)) for target in self._models().values()]
        return [*super().get_outputs(include_bytecode), *built]

    def run(self) -> None:
        super().run()
        for source, target in self._models().items():
            built = Path(self.build_lib, target)
            self.mkpath(str(built.parent))
            self.copy_file(source, str(built))

    def _models(self) -> dict[str, str]:
        # The container image is built without model_repo/ here: it has a copy elsewhere.
        return {} if self.editable_mode or not (ROOT / "model_repo").is_dir() else shipped()


def readme() -> str:
    """README.md with every relative link turned into one to the repository."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    source = project["urls"]["Source"]

    def absolute(link: re.Match[str]) -> str:
        view = "raw" if link[1] == "!" else "blob"
        return f"{link[1]}[{link[2]}]({source}/{view}/main/{link[3]})"

    # A picture may be the text of a link, so pictures come first.
    text = (ROOT / "README.md").read_text("utf-8")
    relative = r"\[([^\[\]]*)\]\((?![a-z]+:|#)([^)\s]+)\)"
    return re.sub(rf"(?<!!)(){relative}", absolute, re.sub(rf"(!){relative}", absolute, text))


setup(
    cmdclass={"build_py": WithModels},
    long_description=readme(),
    long_description_content_type="text/markdown",
)
