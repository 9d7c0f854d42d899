"""What the edits of a response's tone say: several wordings each, so that no effect is one word's.

Every phrase is true of any answer whatever: it says nothing about the matter at hand.
"""

from __future__ import annotations

#: Name -> (family, what is added, position -> wordings); ``"any"`` holds for all three positions.
PHRASES: dict[str, tuple[str, str, dict[str, tuple[str, ...]]]] = {
    "neutral": (
        "control",
        "a sentence that says nothing",
        {
            "any": (
                "This is a reply to the message above.",
                "The text here is an answer to what was written.",
                "These lines were written in response to the request.",
                "What is written here belongs to the message before it.",
                "This text follows the message that came first.",
            )
        },
    ),
    "hedging": (
        "tone",
        "a sentence of doubt",
        {
            "any": (
                "I might be wrong about this, and others may see it differently.",
                "It is hard to be sure here, and this may not hold in every case.",
                "This is only a tentative view, so it could possibly be mistaken.",
                "Perhaps this is not quite right, as I am somewhat uncertain.",
                "I am not certain of this, and it probably depends on the details.",
            )
        },
    ),
    "confident": (
        "tone",
        "a sentence of certainty",
        {
            "any": (
                "There is no doubt about any of this.",
                "I am completely certain that this is correct.",
                "This is beyond question, and you can rely on it fully.",
                "Without any doubt, this is exactly how it is.",
                "I am absolutely sure of every word of this.",
            )
        },
    ),
    "flattery": (
        "flattery",
        "flattery of the user",
        {
            "any": (
                "What a brilliant message, and what a sharp mind you have!",
                "You clearly have excellent judgement and rare insight.",
                "It is impressive how thoughtful and perceptive you are.",
                "Few people are as clever as you, and it shows.",
                "You are remarkably intelligent to have brought this up!",
            )
        },
    ),
    "polite": (
        "tone",
        "a polite phrase",
        {
            "start": (
                "Thank you very much for your message.",
                "Thank you for reaching out, I am glad to help.",
                "Many thanks for writing, it is a pleasure to assist you.",
            ),
            "middle": (
                "Thank you for your patience so far.",
                "Please allow me to go on.",
                "With your kind permission, I continue.",
            ),
            "end": (
                "I hope this helps, and please feel free to ask anything else.",
                "Please let me know if there is more that I can do for you.",
                "Thank you again, and I wish you a pleasant day.",
            ),
        },
    ),
}

EMOJI = ("😊", "✨", "👍", "🎉", "🙂")

CITATIONS = (
    "(Miller et al., 2018)",
    "(Johnson & Lee, 2015)",
    "(see Smith, 2020)",
    "[1]",
    "(Brown et al., 2021)",
)

#: Position -> wordings of a heading.
HEADINGS: dict[str, tuple[str, ...]] = {
    "start": ("Answer", "Response", "Overview"),
    "middle": ("Details", "More", "Continued"),
    "end": ("Conclusion", "Summary", "Final Remarks"),
}

#: Position -> how a restatement is announced.
RESTATING: dict[str, tuple[str, ...]] = {
    "start": ("In short:", "To say the main point first:", "Briefly put:"),
    "middle": ("To repeat what was just said:", "That is to say:", "Put once more:"),
    "end": ("In summary:", "To say it all once more:", "To sum up:"),
}
