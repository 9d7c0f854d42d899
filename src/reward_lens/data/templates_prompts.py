"""The same prompt in other words, and in other frames: what should not change a preference."""

from __future__ import annotations

from reward_lens.data.fields import Message
from reward_lens.data.items import Item

#: Name -> how a user's turn is put; what is asked stays word for word the same.
PARAPHRASES: dict[str, str] = {
    "greeting": "Hello! {prompt}",
    "please": "Please help me with this. {prompt}",
    "question": "I have a question for you.\n\n{prompt}",
    "request": "{prompt}\n\nPlease answer this.",
    "thanks": "{prompt}\n\nThank you in advance.",
}

#: Name -> how a conversation of one turn is laid out as plain text.
TEMPLATES: dict[str, str] = {
    "user_assistant": "User: {prompt}\nAssistant: {response}",
    "question_answer": "Question: {prompt}\nAnswer: {response}",
    "headings": "### Instruction:\n{prompt}\n\n### Response:\n{response}",
}


def paraphrased(item: Item, name: str) -> Item:
    """The item with the last turn before its response put in another way; its lineage stays."""
    turns = item.messages or ()
    last = len(turns) - 2
    put = PARAPHRASES[name].format(prompt=turns[last].content)
    new = [*turns[:last], Message(turns[last].role, put), turns[-1]]
    return Item(messages=tuple(new), lineage=item.lineage, id=item.id)


def laid_out(item: Item, name: str) -> Item:
    """The item as plain text in a frame that is not the checkpoint's; its lineage stays."""
    text = TEMPLATES[name].format(prompt=item.prompt_text, response=item.response)
    return Item(text=text, lineage=item.lineage, id=item.id)
