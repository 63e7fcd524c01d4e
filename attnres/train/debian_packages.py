"""Packages of Debian 12 that hold much text, with the sums of what this version makes of them."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Package:
    """A package, and which of its files are text.

    Args:
        name: of the package.
        files: pattern of the files below its root; links are passed over.
        version: that of which `sha256` is; of another the sum is not known.
        sha256: of the file that is written.
        licence: in words.
    """

    name: str
    files: str
    version: str = ""
    sha256: str = ""
    licence: str = ""


PACKAGES = (
    Package(
        name="dict-gcide",
        version="0.48.5+nmu2",
        sha256="5760c655adb3191877fa2e5e05608cb535b64b16c5ffec0e06deb922db60f838",
        files="usr/share/dictd/gcide.dict.dz",
        licence="GPL-1 or later",
    ),
    Package(
        name="linux-doc-6.1",
        version="6.1.192-3",
        sha256="cd4df381ae20c0a8d6861616d6f385ee17fe9b41066074349108496e9969ca90",
        files="usr/share/doc/linux-doc-6.1/Documentation/**/*.rst.gz",
        licence="GPL-2",
    ),
    Package(
        name="anarchism",
        version="15.3-3",
        sha256="8f51dc504490ce8e9fd79f80618542352a385a9a28fc8d081886b875c8c26a8f",
        files="usr/share/doc/anarchism/html/*.html",
        licence="GPL-2 or later",
    ),
    Package(
        name="python3.11-doc",
        version="3.11.2-6+deb12u9",
        sha256="5ddb4a4e2db220e3ea4adffd70b4dfb0db0f298484ccff116bdd28f994e54ca6",
        files="usr/share/doc/python3.11/html/_sources/**/*.txt",
        licence="PSF-2",
    ),
    Package(
        name="perl-doc",
        version="5.36.0-7+deb12u4",
        sha256="2d5f50cf48fdf5e9a82fb9af4011ea585b88cc3556956b1087daec7b4bec01c7",
        files="usr/share/perl/*/**/*.pod",
        licence="Artistic or GPL-1 or later",
    ),
    Package(
        name="postgresql-doc-15",
        version="15.20-0+deb12u1",
        sha256="aa7bbf39c86cd71aad12ca93e832a1a4c716136958c9f2a391c9f3ca9662dd2c",
        files="usr/share/doc/postgresql-doc-15/html/*.html",
        licence="PostgreSQL",
    ),
    Package(
        name="sqlite3-doc",
        version="3.40.1-2+deb12u2",
        sha256="5bc64b5c3225c26fb2ba1a21b42f15ed6613a40eacf0556c909e010e441bd232",
        files="usr/share/doc/sqlite3/**/*.html",
        licence="public domain",
    ),
    Package(
        name="git-doc",
        version="1:2.39.5-0+deb12u3",
        sha256="51d0f9f1724b6cdf75f24f545c83e61e8f941cd47ac6ec08ccc7c3a0481e6e35",
        files="usr/share/doc/git-doc/**/*.txt",
        licence="GPL-2",
    ),
    Package(
        name="debian-handbook",
        version="11.20220922",
        sha256="456f48d08ee701d51c744f2c3c75d8454553a92e21cdccf75bd58b11406f9c0b",
        files="usr/share/doc/debian-handbook/html/en-US/*.html",
        licence="CC-BY-SA-3.0 or GPL-2 or later",
    ),
)
