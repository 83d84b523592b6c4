"""What pyproject.toml cannot say: the wheel brings the models and the template of `new-task`, and
its README's links are absolute.

The models lie in model_repo/, outside the package: a checkout serves and changes them there. The
template is an example, which the tests run.
"""

import re
import tomllib
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
MODELS = {"emotion": 3, "mnist": 1, "u2netp": 1}
"""The version of each model that travels in the wheel; older ones stay in the checkout."""
TEMPLATE = Path("examples/picture-classifier")


def template() -> dict[str, str]:
    """Map each file of the template to its path in the wheel."""
    files = [file for pattern in ("*.*", "src/*/*.py") for file in (ROOT / TEMPLATE).glob(pattern)]
    names = [file.relative_to(ROOT / TEMPLATE) for file in sorted(files) if file.is_file()]
    return {str(TEMPLATE / name): str(Path("paddlepool/cli/template", name)) for name in names}


def models() -> dict[str, str]:
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


class WithFiles(build_py):
    """Builds the package and copies the files into it, except where it is installed editable."""

    def get_source_files(self) -> list[str]:
        return [*super().get_source_files(), *self._files()]

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        built = [str(Path(self.build_lib, target)) for target in self._files().values()]
        return [*super().get_outputs(include_bytecode), *built]

    def run(self) -> None:
        super().run()
        for source, target in self._files().items():
            built = Path(self.build_lib, target)
            self.mkpath(str(built.parent))
            self.copy_file(source, str(built))

    def _files(self) -> dict[str, str]:
        # The container image is built without model_repo/ here: it has a copy elsewhere.
        files = models() if (ROOT / "model_repo").is_dir() else {}
        return {} if self.editable_mode else files | template()


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
    cmdclass={"build_py": WithFiles},
    long_description=readme(),
    long_description_content_type="text/markdown",
)
