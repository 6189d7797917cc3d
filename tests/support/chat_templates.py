"""Chat templates in the manner of the model families, written for the tests, and the tokens that they use."""

HEADERS = (  # Llama 3: a BOS of its own, headers, trimmed contents, a date
    "{{- bos_token }}"
    "{%- if not date_string is defined %}{% set date_string = '26 Jul 2024' %}{% endif %}"
    "{%- if messages[0].role == 'system' %}{% set system = messages[0].content | trim %}"
    "{% set messages = messages[1:] %}"
    "{%- else %}{% set system = '' %}{% endif %}"
    "{{- '<|start|>system<|stop|>\\n\\nToday: ' + date_string + '\\n\\n' + system + '<|eot|>' }}"
    "{%- for message in messages %}"
    "{{- '<|start|>' + message.role + '<|stop|>\\n\\n' + message.content | trim + '<|eot|>' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|start|>assistant<|stop|>\\n\\n' }}{% endif %}"
)
HEADERS_TOKENS = ["<|begin|>", "<|start|>", "<|stop|>", "<|eot|>"]

TOOLS = """\
{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' }}{{ tool | tojson }}
    {%- endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'ignored' %}{% continue %}{% endif %}
    {{- '<|im_start|>' + ('user' if message.role == 'tool' else message.role) }}
    {%- if message.role == 'tool' %}{{ '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
    {%- elif message.content is string %}{{ '\\n' + message.content }}{% endif %}
    {%- for call in message.tool_calls or [] %}
        {%- set call = call.function if call.function is defined else call %}
        {{- '\\n<tool_call>\\n{"name": "' ~ call.name ~ '", "arguments": ' }}
        {{- call.arguments | tojson ~ '}\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}
"""
TOOLS_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TOOLS_ADDED = ["<tool_call>", "</tool_call>", "<think>", "</think>"]  # added, not special

TURNS = (  # Mistral: BOS, turns in brackets, roles that must alternate, EOS after each answer
    "{{ bos_token }}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate: user, assistant, user, ...') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% else %}{% generation %}{{ ' ' + message['content'] + eos_token }}{% endgeneration %}{% endif %}"
    "{% endfor %}"
)

SMOLLM2 = (  # the manner of the quickstart's: a system message of its own if there is none
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nYou help.<|im_end|>\\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
