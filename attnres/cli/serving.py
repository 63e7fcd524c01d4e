"""The command that serves a saved model."""

from attnres.arguments import fail


def serve(arguments: list[str]) -> None:
    """Serve a saved model over HTTP, as OpenAI's API is spoken, by `transformers serve`.

    attnres serve FOLDER --port 8000

    FOLDER is one that attnres convert wrote, or that of a run which attnres train has finished. All
    options are those of `transformers serve`; it needs the extra `serve`. Nothing is fetched.
    """
    if not arguments or arguments[0] in ("-h", "--help"):
        print(serve.__doc__)
        return
    if arguments[0].startswith("-"):
        fail(f"the folder of a model comes first, got {arguments[0]}")
    from attnres.inference.serving import serve as serve_folder
    from attnres.models.pretrained import model_path

    serve_folder(model_path(arguments[0]), arguments[1:])
