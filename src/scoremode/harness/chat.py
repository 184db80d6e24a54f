"""A model's chat template as lm-evaluation-harness asks for it: messages → the text of a prompt."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from scoremode.checkpoint.chat_template import chat_template
from scoremode.checkpoint.model_files import ModelFiles
from scoremode.checkpoint.tokenizer import checkpoint_tokenizer
from scoremode.errors import TokenizerError
from scoremode.text.conversations.template import ChatTemplate

# Behind what the model is to go on with, while it is rendered; the space tells whether the template
# keeps spaces, as in transformers' `continue_final_message`.
_MARK = "GOES_ON_HERE "


@dataclass(frozen=True)
class ChatPrompts:
    """The first chat template in `places`, a model's files behind those of a tokenizer given before
    its own."""

    places: Sequence[ModelFiles]

    @cached_property
    def template(self) -> ChatTemplate:
        """Raises TokenizerError where there is none."""
        template = chat_template(self.places, checkpoint_tokenizer(self.places[0]))
        if template is None:
            raise TokenizerError(f"{self.places[0]}: has no chat template")
        template.check()
        return template

    @property
    def name(self) -> str:
        """A name that tells this template's prompts from another's."""
        return self.places[0].name.replace("/", "__")

    def prompt(self, messages: Sequence[Mapping[str, str]], *, prompts: bool) -> str:
        """The text of `messages`, with the beginning of the assistant's next turn; without `prompts` up
        to the end of the last message, which the model goes on with.

        A template that refuses a system message gets the others. Raises TokenizerError.
        """
        try:
            return self._rendered(messages, prompts=prompts)
        except TokenizerError:
            others = [message for message in messages if message["role"] != "system"]
            if len(others) == len(messages):
                raise
            return self._rendered(others, prompts=prompts)

    def _rendered(self, messages: Sequence[Mapping[str, str]], *, prompts: bool) -> str:
        if prompts:
            return self.template.render(messages, prompts=True).text
        *before, last = messages
        marked = {**last, "content": last["content"] + _MARK}
        text = self.template.render([*before, marked]).text
        at = text.rfind(_MARK.strip())
        if at < 0 or last["content"].strip() not in text:
            raise TokenizerError(
                f"{self.template.source}: its chat template leaves out the end of the last message, "
                "which the model is to go on with"
            )
        return text[:at] if text.startswith(_MARK, at) else text[:at].rstrip()
