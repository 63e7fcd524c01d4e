"""A page on which a run's depth weights are looked at token by token, in any browser.

subjects  folders given -> models, with what else is known of them
reading   a model and a text -> its weights of every token, its mixing matrix
pieces    tokens -> text to show
page      all of it in one HTML file, with style.css and the modules *.js put into page.html
"""
