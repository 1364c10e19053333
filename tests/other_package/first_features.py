"""First features: a method that lives in a package of its own.

The backbone learns the first task and then stays as it is; later tasks train their heads alone.
Remembers between tasks: nothing but the network.
Cost: that of plain training.
"""

from softmask.learning import Method, Task, register


@register("first-features")
class FirstFeatures(Method):
    title = "first features"
    never_forgets = True

    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        self.backbone.requires_grad_(task.id == 0)
