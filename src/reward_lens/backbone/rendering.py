"""From an item to the text, or the two texts, that are tokenised."""

from __future__ import annotations

import string
from dataclasses import dataclass
from typing import Any

from reward_lens.data import Item, Message
from reward_lens.errors import TokenizeError

PLAIN_TEMPLATE = "User: {prompt}\nAssistant: {response}"
CHAT = "chat template"
PAIR = "pair"

_CHOICES = (
    "None, 'plain', 'chat', 'pair', a Jinja chat template, or a text with {prompt} and {response}"
)
_PROBE = (Message("user", "probe of the prompt"), Message("assistant", "probe of the response"))


@dataclass(frozen=True)
class Rendered:
    """What is tokenised.

    Attributes
    ----------
    parts : tuple of str
        One text; question and answer where the tokenizer takes a pair.
    complete : bool
        Whether the text already holds its special tokens, as rendered and chat text does. To the
        others the tokenizer adds its own.
    response : (int, int, int), or None
        Which part holds the response, and its half-open character span there.
    """

    parts: tuple[str, ...]
    complete: bool
    response: tuple[int, int, int] | None = None


class Renderer:
    """Writes items out as one template says.

    Parameters
    ----------
    tokenizer : transformers.PreTrainedTokenizerBase
    template : str, optional
        By default the tokenizer's own chat template, and :data:`PLAIN_TEMPLATE` where it has none.
        ``"chat"`` insists on the tokenizer's own, ``"plain"`` leaves it aside, ``"pair"`` gives
        question and answer as two texts. A text with ``{%`` or ``{{`` is a Jinja chat template; one
        with ``{prompt}`` and ``{response}`` is filled in.
    pairs : bool
        Whether the tokenizer puts a separator between two texts.
    pair_default : bool
        Whether to use that instead of the plain text.

    Attributes
    ----------
    template : str
        ``"chat template"``, ``"pair"``, or the text of any other template.
    kind : {"chat", "pair", "format"}

    Raises
    ------
    TokenizeError
        If the template is none of these, the tokenizer cannot serve it, or it leaves out the
        response.
    """

    def __init__(
        self,
        tokenizer: Any,
        template: str | None = None,
        *,
        pairs: bool = False,
        pair_default: bool = False,
    ) -> None:
        self.tokenizer = tokenizer
        self._jinja: str | None = None
        own = bool(getattr(tokenizer, "chat_template", None))
        if template is None:
            template = "chat" if own else "pair" if pair_default and pairs else "plain"
        elif not isinstance(template, str):
            raise TokenizeError(f"template={template!r}: choose {_CHOICES}")
        if template == "chat" and not own:
            raise TokenizeError(
                "template='chat', but the tokenizer has no chat template: give its Jinja text as "
                "template=, or choose 'plain'"
            )
        if template == "pair" and not pairs:
            raise TokenizeError(
                "template='pair', but this tokenizer puts no separator between two texts; it is "
                "for tokenizers that do (BERT, RoBERTa, DeBERTa)"
            )
        self.kind = "format"
        if template == "pair":
            self.template, self.kind = PAIR, "pair"
        elif template == "chat":
            self.template, self.kind = CHAT, "chat"
        elif template == "plain":
            self.template = PLAIN_TEMPLATE
        elif "{%" in template or "{{" in template:
            self.template, self.kind, self._jinja = template, "chat", template
        else:
            self.template = _checked_format(template)
        self.probe = self._probed()

    def source(self) -> str:
        """The template's whole text, for a fingerprint."""
        if self.template == CHAT:
            return str(self.tokenizer.chat_template)
        return self.template

    def render(self, item: Item, name: str, find: bool = False) -> Rendered:
        """Write one item out.

        Parameters
        ----------
        item : Item
        name : str
            How errors call it.
        find : bool
            Whether to find out where the response lies, which costs a chat template a second run.

        Raises
        ------
        TokenizeError
            If the item is ids, the template refuses or drops a turn, or it has turns for which
            there is no template.
        """
        if item.text is not None:
            return Rendered((item.text,), complete=True)
        if item.messages is None:
            raise TokenizeError(f"{name} was given as ids; there is no text to render")
        if self.kind == "chat":
            text = self._chat(item.messages, name)
            span = self._chat_span(item.messages, text) if find else None
            return Rendered((text,), complete=True, response=span)
        question, answer = self._two_turns(item.messages, name)
        if self.kind == "pair":
            return Rendered((question, answer), complete=False, response=(1, 0, len(answer)))
        # A format is split, not searched: the prompt may hold the same words as the response.
        before = _head(self.template).format(prompt=question)
        text = self.template.format(prompt=question, response=answer)
        return Rendered((text,), False, (0, len(before), len(before) + len(answer)))

    def _chat(self, messages: tuple[Message, ...], name: str) -> str:
        try:
            text = self._run(messages)
        except Exception as error:  # whatever a template raises: Jinja's own, or Python's
            raise TokenizeError(
                f"{name}: the chat template refused the conversation with roles "
                f"{[m.role for m in messages]}: {error}"
            ) from error
        for turn in messages:
            # Other turns may be changed on purpose (thinking taken out); a system turn is not.
            if turn.role == "system" and turn.content.strip() not in text:
                raise TokenizeError(
                    f"{name}: the chat template leaves out the system turn. Take it out of the "
                    f"conversation, or give a template= that writes it."
                )
        return text

    def _run(self, messages: tuple[Message, ...]) -> str:
        turns = [{"role": m.role, "content": m.content} for m in messages]
        chosen = {} if self._jinja is None else {"chat_template": self._jinja}
        return str(self.tokenizer.apply_chat_template(turns, tokenize=False, **chosen))

    def _chat_span(self, messages: tuple[Message, ...], text: str) -> tuple[int, int, int] | None:
        """Where the response lies: between what stays the same when another one is rendered."""
        mark = "response"
        while any(mark in m.content for m in messages):
            mark += "_"
        try:
            other = self._run((*messages[:-1], Message(messages[-1].role, mark)))
        except Exception:  # a template that wants certain words of a response
            other = ""
        start = other.rfind(mark)
        if start >= 0:
            after = other[start + len(mark) :]
            stop = len(text) - len(after)
            if text.startswith(other[:start]) and text.endswith(after) and stop > start:
                return 0, start, stop
        response = messages[-1].content.strip()
        start = text.rfind(response)
        return (0, start, start + len(response)) if start >= 0 else None

    def _two_turns(self, messages: tuple[Message, ...], name: str) -> tuple[str, str]:
        if len(messages) == 2 and messages[0].role == "user":
            return messages[0].content, messages[1].content
        roles = [m.role for m in messages]
        if self.kind == "pair":
            raise TokenizeError(
                f"{name} has turns {roles}; a pair of texts is one user prompt and one response. "
                f"Join the prompt's turns into one as the model was trained, or give a template=."
            )
        lack = "this tokenizer has no chat template"
        if getattr(self.tokenizer, "chat_template", None):
            lack = "the template chosen is no chat template"
        raise TokenizeError(
            f"{name} has turns {roles} and {lack}; without one only a user prompt and a response "
            f"can be written (as {self.template!r}). Set tokenizer.chat_template, give a Jinja "
            f"template=, or give rendered text."
        )

    def _probed(self) -> str:
        """A two-turn conversation as a chat template writes it; empty where it refuses that."""
        if self.kind != "chat":
            return ""
        try:
            text = self._run(_PROBE)
            other = self._run((_PROBE[0], Message("assistant", "another response")))
        except Exception:  # a template that wants other roles; the items will tell
            return ""
        if text == other:
            raise TokenizeError(
                "the chat template leaves out the last turn of a conversation, so every response "
                "to a prompt would get the same score. Give a template= that writes it."
            )
        return text


def _checked_format(template: str) -> str:
    try:
        parsed = [p for p in string.Formatter().parse(template) if p[1] is not None]
    except ValueError as error:
        raise TokenizeError(f"template={template!r}: {error}") from error
    fields = [name for _, name, _, _ in parsed]
    if set(fields) != {"prompt", "response"} or fields.count("response") != 1:
        named = f"names the fields {fields}" if fields else "has no field"
        raise TokenizeError(f"template={template!r} {named}; choose {_CHOICES}")
    if any(spec or conversion for _, _, spec, conversion in parsed):
        raise TokenizeError(f"template={template!r}: write plain {{prompt}} and {{response}}")
    return template


def _head(template: str) -> str:
    """What a format writes before the response."""
    return template[: template.index("{response")]
