"""Synthesised speech, and how the mouth moves while it is spoken."""

import numpy as np

RATE = 16000  # Hz of the sound
TRACK_RATE = 100  # mouth positions a second
FULL = 0.72  # face units between the inner lips at the widest vowel
MOTION = 0.05  # s, standard deviation of the Gaussian that stands for the inertia of jaw and lips
LEAD = 0.02  # s: lips move before the sound they make

# How far the lips part (0..1) and how wide the mouth is (1 = at rest) for the sounds of IPA, by the first symbol that is listed.
OPENNESS = {
    **dict.fromkeys("aɑæɐɶ", 1.0),
    **dict.fromkeys("ɛɔʌɒœɜ", 0.78),
    **dict.fromkeys("əeoɘɵøɚɝ", 0.58),
    **dict.fromkeys("ɪʊʏ", 0.42),
    **dict.fromkeys("iuyɨʉɯ", 0.34),
    **dict.fromkeys("mbp", 0.0),
    **dict.fromkeys("fvβɸ", 0.07),
    **dict.fromkeys("wʋʍ", 0.16),
    **dict.fromkeys("szʃʒɕʑ", 0.16),
    **dict.fromkeys("tdnlɾɲʎɫrθðɬ", 0.24),
    **dict.fromkeys("ɹɻjɥ", 0.28),
    **dict.fromkeys("kɡgŋxɣçqχʁʀħʔhɦɟc", 0.32),
}
WIDENESS = {
    **dict.fromkeys("iɪeɛjæ", 1.10),
    **dict.fromkeys("uʊwyʏʉɥʋ", 0.74),
    **dict.fromkeys("oɔøœɵ", 0.84),
    **dict.fromkeys("ʃʒɹɻ", 0.86),
}

TRAIN_VOICES = [
    "en-us",
    "en-us+f2",
    "en-us+f5",
    "en-us+m1",
    "en-us+m4",
    "en-us+m7",
    "en-us+Andy",
    "en-us+croak",
    "en-gb-scotland",
    "en-gb-scotland+f3",
    "en-us+klatt2",
    "de",
    "de+f4",
    "de+m2",
    "fr",
    "fr+f1",
    "es",
    "es+f2",
    "it",
    "it+f5",
    "nl",
    "nl+f3",
    "pt",
    "sv+f2",
    "pl",
]
HELD_OUT_VOICES = ["en-us+f3", "en-us+m3", "en-gb-x-rp", "en-us+klatt4"]

WORDS = {
    "en": """apple mama bottle open water yellow father summer people window paper music river happy market winter garden moving bubble
    elephant problem family
        animal banana coffee under over before about always never maybe someone together again away around beautiful terrible possible
        remember imagine follow borrow
        the a my your our their one two five seven nine and or but with without from into near far off on up down big small warm cold deep
        loud quiet slow fast
        man woman baby boy girl dog cat bird fish house room door floor wall roof street town farm field hill lake sea boat ship wheel
        road map book page word
        speaks makes takes gives moves pushes pulls opens closes brings carries follows wants likes loves needs hears sees finds keeps
        holds builds paints reads writes
        papa pope bomb bump mob map pump palm balm warm farm form foam home comb lamb limb time thumb plum plumb palm calm""",
    "de": """Mama Papa Baum Haus Apfel Wasser Abend Morgen Sommer Winter Blume Garten Musik Fenster Katze Vogel Kuchen Brot Butter Milch
    immer wieder niemals oben
        unten aber oder und mit ohne für mein dein groß klein warm kalt macht bringt nimmt gibt kommt geht malt baut öffnet Boot Bahn
        Apotheke Banane""",
    "fr": """maman papa pomme maison jardin bateau musique fenêtre beaucoup toujours jamais encore avec pour dans sur sous petit grand
    chaud froid bouche mouvement
        porte table lampe arbre oiseau chapeau matin bonjour parle apporte mange ouvre ferme regarde trouve""",
    "es": """mamá papá manzana casa jardín barco música ventana siempre nunca abuela mapa bomba palabra boca mover hablar agua pan mesa
    libro perro gato pájaro montaña
        mañana bueno malo grande pequeño abre come toma pinta busca para por con sin""",
    "it": """mamma papà mela casa giardino barca musica finestra sempre mai nonna mappa bomba parola bocca muovere parlare acqua pane
    tavola libro cane gatto montagna
        domani buono grande piccolo apre mangia prende dipinge cerca per con senza""",
    "nl": """mama papa appel huis tuin boot muziek raam altijd nooit oma kaart bom woord mond bewegen praten water brood tafel boek hond
    kat vogel morgen goed groot
        klein open eet neemt maakt zoekt voor met zonder""",
    "pt": """mamãe papai maçã casa jardim barco música janela sempre nunca avó mapa bomba palavra boca mover falar água pão mesa livro
    gato montanha amanhã bom grande
        pequeno abre come toma pinta busca para por com sem""",
    "sv": """mamma pappa äpple hus trädgård båt musik fönster alltid aldrig karta bomb ord mun röra tala vatten bröd bord bok hund katt
    fågel morgon god stor liten
        öppnar äter tar målar söker för med utan""",
    "pl": """mama papa jabłko dom ogród łódka muzyka okno zawsze nigdy mapa bomba słowo usta mówić woda chleb stół książka pies kot ptak
    góra jutro dobry duży mały
        otwiera bierze maluje szuka dla bez""",
}


def sentence(voice: str, random: np.random.Generator) -> str:
    """Five to eleven random words of the voice's language, perhaps with a comma between."""
    words = list(random.choice(WORDS[voice[:2]].split(), size=random.integers(5, 12)))
    if random.random() < 0.4:
        words[len(words) // 2] += ","
    return " ".join(words) + random.choice([".", "?", "!"])


def say(text: str, voice: str, words_per_minute: int = 160, pitch: int = 50) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """-> sound float32 [T] at 16 kHz in -1..1; opening and spread of the mouth, float32 [~T/160] at 100 Hz (see `mouth.render` for their
    units)."""
    import soxr
    import speech  # tools/speech.py

    sound, rate, phones = speech.speak(text, voice=voice, words_per_minute=words_per_minute, pitch=pitch)
    opening, spread = mouth_track(phones, len(sound) / rate)
    return soxr.resample(sound, rate, RATE).astype(np.float32), opening, spread


def mouth_track(phones, seconds: float) -> tuple[np.ndarray, np.ndarray]:
    """Opening and spread at 100 Hz from phonemes [(IPA, start in s)]; pauses close the mouth. Both float32 [ceil(100*seconds)]."""
    count = int(np.ceil(seconds * TRACK_RATE))
    opening, spread = np.zeros(count), np.ones(count)
    phones = [(name, start) for name, start in phones if not name.startswith("(")]  # "(en)" marks a change of language
    for (name, start), (_, end) in zip(phones, [*phones[1:], ("", seconds)], strict=True):
        symbols = [c for c in name if c in OPENNESS]
        if not symbols:
            continue
        stress = 1.0 if "ˈ" in name or OPENNESS[symbols[0]] < 0.3 else 0.85
        edges = np.linspace(start, end, len(symbols) + 1) - LEAD  # a diphthong is its vowels in a row
        for symbol, begin, stop in zip(symbols, edges[:-1], edges[1:], strict=True):
            part = slice(max(0, round(begin * TRACK_RATE)), max(0, round(stop * TRACK_RATE)))
            opening[part], spread[part] = OPENNESS[symbol] * stress, WIDENESS.get(symbol, 1.0)
    return (FULL * blurred(opening)).astype(np.float32), blurred(spread, edge=1.0).astype(np.float32)


def blurred(track: np.ndarray, edge: float = 0.0) -> np.ndarray:
    """The track under a Gaussian of MOTION seconds."""
    reach = int(4 * MOTION * TRACK_RATE)
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / TRACK_RATE / MOTION) ** 2)
    return np.convolve(np.pad(track, reach, constant_values=edge), kernel / kernel.sum(), mode="valid")


def monologue(voices: list[str], seconds: float, random: np.random.Generator, silence: float = 0.18):
    """Sentences of random voices with pauses until `seconds` are full: sound [T], opening and spread [T/160] (all float32)."""
    pieces, length = [], 0.0
    while length < seconds:
        if random.random() < silence or not pieces:
            pause = float(random.uniform(0.1, 1.6))
            piece = (
                np.zeros(round(pause * TRACK_RATE) * 160, np.float32),
                np.zeros(round(pause * TRACK_RATE)),
                np.ones(round(pause * TRACK_RATE)),
            )
        else:
            voice = str(random.choice(voices))
            piece = say(sentence(voice, random), voice, int(random.integers(125, 200)), int(random.integers(25, 75)))
            count = min(len(piece[0]) // 160, len(piece[1]))
            level = 10 ** random.uniform(-0.6, 0.0) / max(np.abs(piece[0]).max(), 1e-3)
            piece = piece[0][: count * 160] * level, piece[1][:count], piece[2][:count]
        pieces.append(piece)
        length += len(piece[1]) / TRACK_RATE
    count = round(seconds * TRACK_RATE)
    sound, opening, spread = (np.concatenate(parts).astype(np.float32) for parts in zip(*pieces, strict=True))
    return sound[: count * 160], opening[:count], spread[:count]


def roughened(sound: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """The sound as another microphone in another room might hear it: a tilt of its spectrum, an echo, noise. Pauses get noise too."""
    if random.random() < 0.5:
        tilt = random.uniform(-0.5, 0.5)
        sound = sound + tilt * np.concatenate([[0], sound[:-1]])
    if random.random() < 0.3:
        length = int(random.uniform(0.05, 0.25) * RATE)
        echo = random.standard_normal(length) * np.exp(-np.arange(length) / (length / 5)) * random.uniform(0.01, 0.04)
        echo[0] = 1.0
        size = len(sound) + length - 1
        sound = np.fft.irfft(np.fft.rfft(sound, size) * np.fft.rfft(echo, size), size)[: len(sound)]
    if random.random() < 0.6:
        noise = random.standard_normal(len(sound))
        noise = noise + random.uniform(0, 1.5) * np.concatenate([[0], noise[:-1]])
        sound = sound + noise * 10 ** random.uniform(-4.0, -1.9)
    return np.clip(sound, -1, 1).astype(np.float32)
