"""Well-known data sets of the Hugging Face hub with the preprocessing of the papers, from the hub or from a folder of its files."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from edgefl.data import columns, hub
from edgefl.data.given import Given, Reading
from edgefl.data.own import files_in, hash_of
from edgefl.data.prepared import Usual
from edgefl.data.shakespeare import ALPHABET, CLASS_NAMES, PLACES, TRAIN_SHARE
from edgefl.data.sources import Dataset
from edgefl.data.split import Split
from edgefl.errors import DataError
from edgefl.registry import dataset


@dataclass(frozen=True)
class Preset:
    """Where a data set is on the hub, the roles of its columns, what the papers prescribe, and the channels of its images.

    Some images of a data set in colour are stored in grey, and the reverse, so the first image does not tell.
    """

    repository: str
    feature: str
    label: str
    usual: Usual
    owner: str | None = None
    channels: int = 3


@dataset("cifar10")
def cifar10(data_dir: str | None = None) -> Dataset:
    """Return CIFAR-10 (Krizhevsky 2009): 50,000 and 10,000 images 3×32×32, with the mean and deviation of the training pixels."""
    usual = Usual("CIFAR-10, 32×32", (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), "resnet18")
    return load("cifar10", Preset("uoft-cs/cifar10", "img", "label", usual), data_dir)


@dataset("cifar100")
def cifar100(data_dir: str | None = None) -> Dataset:
    """Return CIFAR-100 (Krizhevsky 2009) with its 100 fine labels: 50,000 and 10,000 images 3×32×32."""
    usual = Usual("CIFAR-100, 32×32", (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762), "resnet34")
    return load("cifar100", Preset("uoft-cs/cifar100", "img", "fine_label", usual), data_dir)


@dataset("svhn")
def svhn(data_dir: str | None = None) -> Dataset:
    """Return the cropped digits of SVHN (Netzer et al. 2011): 73,257 and 26,032 images 3×32×32, without the extra part."""
    usual = Usual("SVHN, 32×32", (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970), "resnet18")
    return load("svhn", Preset("ufldl-stanford/svhn:cropped_digits", "image", "label", usual), data_dir)


@dataset("mnist")
def mnist(data_dir: str | None = None) -> Dataset:
    """Return MNIST (LeCun et al. 1998): 60,000 and 10,000 grey images 28×28 of digits."""
    usual = Usual("MNIST, 28×28", (0.1307,), (0.3081,), "cnn-5x5")
    return load("mnist", Preset("ylecun/mnist", "image", "label", usual, channels=1), data_dir)


@dataset("femnist", owners="writers")
def femnist(data_dir: str | None = None) -> Dataset:
    """Return FEMNIST (Caldas et al. 2018): grey images 28×28 of 62 characters; owners are writers, a fifth of each is held out."""
    preset = Preset("flwrlabs/femnist", "image", "character", Usual("FEMNIST, 28×28", model="cnn-femnist"), "writer_id", 1)
    return load("femnist", preset, data_dir)


@dataset("cinic10")
def cinic10(data_dir: str | None = None) -> Dataset:
    """Return CINIC-10 (Darlow et al. 2018) without its validation part: 90,000 and 90,000 images 3×32×32."""
    usual = Usual("CINIC-10, 32×32", (0.47889522, 0.47227842, 0.43047404), (0.24205776, 0.23828046, 0.25874835), "resnet18")
    return load("cinic10", Preset("flwrlabs/cinic10", "image", "label", usual), data_dir)


@dataset("tiny-imagenet")
def tiny_imagenet(data_dir: str | None = None) -> Dataset:
    """Return Tiny ImageNet: 100,000 and 10,000 images 3×64×64 of 200 classes; the validation part is held out."""
    usual = Usual("Tiny ImageNet, 64×64", (0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821), "resnet18")
    return load("tiny-imagenet", Preset("zh-plus/tiny-imagenet", "image", "label", usual), data_dir)


@dataset("imdb")
def imdb(data_dir: str | None = None) -> Dataset:
    """Return IMDB's film reviews (Maas et al. 2011): 25,000 and 25,000 texts, the last 500 of each text's 1,000 most frequent words."""
    return load("imdb", Preset("stanfordnlp/imdb", "text", "label", Usual("IMDB, film reviews", model="lstm-imdb")), data_dir)


@dataset("shakespeare-leaf", owners="speaking roles")
def shakespeare_leaf(data_dir: str | None = None) -> Dataset:
    """Return LEAF's Shakespeare (Caldas et al. 2018): windows of 80 characters, labelled with the next; owners are speaking roles.

    The last fifth of a role's windows is held out. Roles with a single window are left out.
    """
    preset = Preset("flwrlabs/shakespeare", "x", "y", Usual(), "character_id")
    given, files = _read("shakespeare-leaf", preset, data_dir)
    x, y = _places(given.x, given.where), _places(given.y, given.where)[:, 0]
    _, number, sizes = np.unique(np.asarray(given.owner).astype(str), return_inverse=True, return_counts=True)
    order = np.argsort(number, kind="stable")
    place = np.empty(len(y), np.int64)
    place[order] = np.arange(len(y)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    trained = np.clip(np.floor(sizes * TRAIN_SHARE).astype(np.int64), 1, None)[number]
    usable = sizes[number] > 1
    train, test = np.flatnonzero(usable & (place < trained)), np.flatnonzero(usable & (place >= trained))
    return Dataset(
        name="shakespeare-leaf",
        title="Shakespeare's plays (LEAF), next character, by speaking role",
        train=Split(x[train], y[train]),
        test=Split(x[test], y[test]),
        class_names=CLASS_NAMES,
        preprocessing={"alphabet": ALPHABET, "window": x.shape[1]},
        default_model="lstm-shakespeare",
        vocabulary=len(ALPHABET),
        train_owner=number[train].astype(np.int64),
        test_owner=number[test].astype(np.int64),
        sha256=hash_of(files),
    )


def _places(texts: np.ndarray, where: str) -> np.ndarray:
    """Return the place in LEAF's alphabet of every character of texts of one length, (n, length) int64. There may be millions of texts."""
    content, lengths = "".join(map(str, texts)), {len(str(text)) for text in texts}
    numbers = PLACES[np.frombuffer(content.encode(), np.uint8)] if content.isascii() else np.array([-1])
    if len(lengths) != 1 or numbers.min() < 0:
        raise DataError(f"{where}: expected windows of one length in the {len(ALPHABET)} characters of LEAF's alphabet")
    return numbers.reshape(len(texts), -1)


def load(name: str, preset: Preset, data_dir: str | None) -> Dataset:
    """Return a data set of the hub, or of the folder ``data_dir`` with its Parquet or Arrow files; DataError says how to fetch it."""
    given, files = _read(name, preset, data_dir)
    return replace(Dataset.of(given, name, usual=preset.usual), sha256=hash_of(files))


def _read(name: str, preset: Preset, data_dir: str | None) -> tuple[Given, list[Path]]:
    repository, _, configuration = preset.repository.partition(":")
    reading = Reading(preset.label, preset.owner, (preset.feature,), channels=preset.channels)
    if data_dir is None:
        return hub.read(preset.repository, reading, f"--dataset {name} --data-dir DIR")
    folder = Path(data_dir)
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; {hub.how_to_fetch(repository, f'--dataset {name} --data-dir DIR')}")
    folder = folder / configuration if configuration and (folder / configuration).is_dir() else folder
    return columns.read(folder, reading), files_in(folder)
