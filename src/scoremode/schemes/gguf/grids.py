"""The codebooks of ggml's I-quants: points of 8 or 4 dimensions on a grid of 3 or 8 levels.

Each is stored as what it is, a set, since its points are in order: of all points of the grid, a bit
that tells whether it is one, lowest first, compressed. A point's number has its coordinates as digits,
the first one lowest.
Source: gguf 0.19, `quants`, by tools/gguf_grids.py.
"""

import zlib
from base64 import b64decode
from functools import lru_cache

import torch

__all__ = ["grid", "signs"]

# The values of the levels; of IQ1 eight times, so that an eighth can be added to them.
_LEVELS = {
    "IQ1": (-8, 0, 8),
    "IQ2": (8, 25, 43),
    "IQ3_XXS": (4, 12, 20, 28, 36, 44, 52, 62),
    "IQ3_S": (1, 3, 5, 7, 9, 11, 13, 15),
}
_SETS = {
    "IQ1_S": (
        "eNotUkFLnEcYfneq4XVMZWM/QXJ696ux01kR6y3pZZFdWPRiQvIHPNm0SMk5TT4nu+mX2RRCILQ0l3EwyTgNq/FQ"
        "tp+wAU9WemjprQdpPYS6HgJeGgzEzK69zbzwvM/zvM9z7UJUN2zmMlY+c3dJ2/MoKarPR4rKlQsj/YYpSkcBlflA"
        "mnTL8wd+EGLg/r4yWAqoQprMRwGup/AHg4kMk6hO1ZlrWMlNbBvS4yDHnLe4v44oBAQu4QW5hPhj/CVztNu8Z5v+"
        "0s3DTralhlpxtvvn0EMWQ0xOZ1wxBDn7t/08pqKF5dKy1wLjXFA4omigUrhaN8g+dpeopuhqkGEJH81HTGLLqcRU"
        "GaGyi5aJnyTWw3sKKyXoKjQwcxkquU8VaCVxZSrqD5bFqXjGyEug4Re6KVy24t3XoDgyEbMaKKgmprMh/TY1srjz"
        "17NGY8k9DP8bDV0+K6laKwkt0dPObza26z+afx0DBtKlQIlpWCsyk6hpnrVb2btDa4oWNRcdCyvT7OzxamfvddFN"
        "fte+dXj83+2Xr77J9r54+8nJy/Hj4YN/dJz37aGax003qJon2djBnaRvYWLxyPHVIgTLuO+HgSnJn9Kv6t4DJcDC"
        "/eQjUIjwlfZ+iz1ta7PLki+/n/x98yCv8pN+T4z88aQPePcOhLkVUv5iFk/XzEAyCtousOWoHA5VeK56KXsS/ls+"
        "3Eu532C3NjlipmRjSAEtXtdLLe8TIK72d+IClruoAU0joVF3OXopE+BdVMFBb+E+pYqPhgi89XqjwbgMFCrxXKCA"
        "tZTFpj0oWqizuc1gefVN09MVsfizmXqVcBaacH0hFIl5X/Qdu2YsYp6MjkENnabMexVdOwOznuETyH9Y/j/l/lBp"
        "9fyIACBw8Yw6loGqDoiDCM7NVbrdcKynMB3DVPAShkmwzLoLc+8B4wUZaQ=="
    ),
    "IQ2_XXS": (
        "eNp1UkuqxDAMk8Hdq5B3Hwd6gG7m/ld5tvPt0BENpLHkSG4/f+XDq1ZouUAAaigwxA64afWEFLXbz718+LoBQVCq"
        "n5eSxPakiugoSjpNT6j4xkLlkEakmrdsKvaVVzQcEqXwcY6jlFtvHa9ytE5NdA8erHrVBlu7ptfiaQ4UTzR7t0+D"
        "9Mhgk18I792/MWkMozOpYEUGZTWnjKHk4pUeVVKiD+3yaLJ11MlR6vJsezlRkya9ZIuWJs+Vsrxm3zJ8I6bZP4Xa"
        "FM4G+dvYCpk35szlEWu/YcUTjjHsvjFmaK+qB/ijNp18T/Nl/wr9TfsHxl0VIw=="
    ),
    "IQ2_XS": (
        "eNpdUVuuhTAIHBL6j4nuhyb2vyZ2/1s5PFr13uYcxQLDzDDGuEarR6N7jN6qFMJ9iVYGEbqnDtoZlkIhZkArpNjL"
        "fqNsO5NA1bo8JYAFBDtigJd16QK0VEffvNELHLCRJGDcOCavsBSwVdr3Ft8MzBI/YyQguItPFR+YrVZ4Vig91ZxJ"
        "msCQSjFFFqbnQF6FMyWHrikZp8mrtADNKEt5SwnyPsOM0miHp4hoTq0xX7HOtDckM8rDMHs17BW3p+aFYCbtz+aG"
        "BpShy2TzehJuiNPq30xqNOkvCWeIZyg+If0x2t8iIbnQwY7bDyOfokOFu1z32/oVuavEmHEw5Vjp7gI+vAKcOd2I"
        "zVCwoLfAQE4LqnxJ7h+iL1v+XMoqbTQn0uOl7msKr70o/h/N4W2uYLIu79Po/gBOsClJ"
    ),
    "IQ2_S": (
        "eNptUl2KBiEMa0HfK+h9KozvCvb+V9m0OrvfsivD/MXEJGpmy4a1XPAyh9Xc6l4yLVEpeAwza3usaVZxAVJAq6Yp"
        "pM2cJcyaLT2AlIirZCEipW1rQbmtui2WsEqz9p4y1US+1ivoUAjWzIBAV1vJISY6EP4lcShBm/Zqq+fEhfbsmg9L"
        "aCXMz/QgxS/BAkpmUINcYMOXIGrxTSGOT9yYpnu1Vh9vI1+HvSWP7L7MthfV6UCzvw4hIPVAsBEstKF0IB8QbMGi"
        "P5Er4HetD0G65iMyICUE/BGMWiLJM1qGQ/VNuR2K20hOIF6fghIY3ex4n3JL4FPLO2KGahul7iKdaRzznbS0y8Iu"
        "F4+cfyKzQ/OKg5U5ZHDnVx3K2c/KMLms2JRQPAfAKf90WOQ7NiDh02sg9DEwGad3h46fCTlhJKkX/TCtK8h6O/yV"
        "Gdg1ylcNv5Ur35q+ALm8Vh4="
    ),
    "IQ3_XXS": (
        "eNpNUTEOwjAMPFuxVGUKQ/eKCfGKdGCHH0WdEK9g5Jn4nKZwVdUmPt+dk/llmoBLtrNpgcxqL2xYNlvgEExopeGy"
        "AckfwgsFeMBLimx5bgKYWhSzqa+QDKIVFeeu4jj5ChqqgRTblm/0xzX6nmKbNXGSntCb6DfRq7kbjTtyjSBQy66/"
        "hN+d+2xmUmVXQJrvrAzPhsIYUZoYzGd743mEKqQLVncbdJqUEUMGcbH932U9l6yoo4HjpLQ7QEI8ddpIhIPI7z1c"
        "tL8Nw3X9CxXSe8Mevst9ZNxL7bIcM/FIRlwNpv2O7piB+AIWuhT2"
    ),
    "IQ3_S": (
        "eNotUcFKw0AQfTPMwmZPuyHiNd1GqPmKrdSDeimC+DtpqdD2luIHiFYE+5PObpzDwLw3897b5Od1br+dOV3PD9Ej"
        "ytdDDGeHykbz6M0QaV9LxaAG9/YTySYHhoCvdEYAri/mGWuWp8AVGyzpHKRqSU7VNugiLRq4le4VlqE1Yq3dGW4z"
        "f3k5mt4Mt+bQ1aL8CW7De9Q33DihhC2qTuHOswxkQW9ZRC9bTmQJkF/p39ly7x0ItCLRqIpzONKxhbV3qioBbFrx"
        "CRYJJYaDaXOaIKOwHu6czGxUfMaWBiHvTMy8gR+y3Ee5EqiCRzaYgaxCEgSjJN8LS14gtkvdwY4GeG5tDZKUhXJ3"
        "KJUXm9K1+oxqAGx08Jn00gqR5+yipY9QsMLkm0MX/F9rhEnkBcIeC53rpb6Gi0eXc8T8kWhylcm7/IVJG/gDusYn"
        "IA=="
    ),
}


@lru_cache(maxsize=16)
def grid(name: str, device: torch.device) -> torch.Tensor:
    """The codebook of a type, each point as one number whose bytes are its coordinates int8: int64 [n]
    of 8, int32 [n] of 4.

    IQ1_S's has all points twice, each coordinate an eighth more, then less.
    """
    levels = torch.tensor(_LEVELS.get(name, _LEVELS.get(name[:3])), dtype=torch.int8)
    dimensions = 8 if len(levels) == 3 else 4
    stored = torch.frombuffer(bytearray(zlib.decompress(b64decode(_SETS[name]))), dtype=torch.uint8)
    present = stored[:, None] >> torch.arange(8, dtype=torch.uint8) & 1
    numbers = present.view(-1).nonzero()
    points = levels[numbers // len(levels) ** torch.arange(dimensions) % len(levels)]
    if name == "IQ1_S":
        points = torch.cat([points + 1, points - 1])
    wide = torch.int64 if dimensions == 8 else torch.int32
    return points.view(wide).view(-1).to(device)


@lru_cache(maxsize=8)
def signs(device: torch.device) -> torch.Tensor:
    """int64 [256]: a byte's bits from the lowest one on, each as a byte of ones."""
    bits = torch.arange(256)[:, None] >> torch.arange(8) & 1
    return (-bits).to(torch.int8).view(torch.int64).view(-1).to(device)
