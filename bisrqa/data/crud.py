"""CRUD-RAG: Chinese news articles and questions over them.

Texts are read from a folder of

- ``events.jsonl``: articles with ``ID``, ``text`` and ``title``, to whose ids questions belong,
- ``corpus.jsonl``: other articles with ``doc_id`` and ``text``,
- ``split_merged.json``: the official file; the articles of its questions are in it,
- ``documents*``: the official collection, an article on each line,

each gzipped or not, those that are there. Articles begin with their date and other remarks, which
end with a mark (``正文：``).

Questions are those of RAGQuestEval (``questeval.jsonl``, or the official
``QuestAnswer*_quest_gt_save.json``): of each article's questions those with an answer that stands in
the article, so that a text can hold it. A question's group is its task.
"""
