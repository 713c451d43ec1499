/* Print docs/config.md from the table of options. Run it after every change of the table:
 *
 *     config_doc > docs/config.md
 */
#include "api/config.h"

#include <stdio.h>

/* A bar ends a cell of the table. */
static void print_cell(const char *text)
{
    for (const char *at = text; *at != '\0'; at++) {
        if (*at == '|') {
            (void)fputs("\\|", stdout);
        } else {
            (void)putchar(*at);
        }
    }
}

/* An option without a default in the table either is an empty text or depends on the machine. */
static void print_default(const char *key, const struct ddi_option_facts *facts)
{
    struct ddi_config config = {0};

    if (facts->preset[0] != '\0') {
        (void)printf("`%s`", facts->preset);
    } else if (ddi_config_set(&config, key, "", NULL) == DD_OK) {
        (void)fputs("empty", stdout);
    } else {
        (void)fputs("by the machine", stdout);
    }
}

static void print_option(const struct ddi_option_facts *facts)
{
    char key[64];

    (void)snprintf(key, sizeof(key), "datadist.%s", facts->name);
    (void)printf("| `%s` | ", key);
    print_default(key, facts);
    (void)fputs(" | ", stdout);
    print_cell(facts->allowed);
    (void)fputs(" | ", stdout);
    print_cell(facts->meaning);
    (void)fputs(" |\n", stdout);
}

static const char intro[] =
    "# Options\n"
    "\n"
    "<!-- Made by tools/config_doc.c from the table in src/api/config.c. Do not edit. -->\n"
    "\n"
    "An option has one name, `datadist.<name>`, and a text as its value. There are three ways to\n"
    "set it; the first that is used wins:\n"
    "\n"
    "1. In C, before the engine is started:\n"
    "\n"
    "   ```c\n"
    "   dd_engine_set(engine, \"datadist.tcp.streams\", \"4\", &err);\n"
    "   ```\n"
    "\n"
    "2. In Python, as a key of the dictionary that `init` takes. All values are text:\n"
    "\n"
    "   ```python\n"
    "   options = llm_config.generate_options()\n"
    "   options[\"datadist.tcp.streams\"] = \"4\"\n"
    "   engine = LLMDataDist(LLMRole.DECODER, cluster_id)\n"
    "   engine.init(options)\n"
    "   ```\n"
    "\n"
    "3. In the environment, as the default of every engine that the process creates. The variable\n"
    "   is `DATADIST_` and the name in upper case, with dots as underscores:\n"
    "\n"
    "   ```sh\n"
    "   export DATADIST_TCP_STREAMS=4\n"
    "   ```\n"
    "\n"
    "A name that does not exist and a value that is not allowed are refused; the text of the\n"
    "error names the option or variable, the value and what is allowed. Whole numbers are decimal\n"
    "digits only.\n"
    "\n"
    "| option | default | allowed | meaning |\n"
    "|---|---|---|---|\n";

int main(void)
{
    struct ddi_option_facts facts;

    (void)fputs(intro, stdout);
    for (size_t i = 0; ddi_config_facts(i, &facts); i++) {
        print_option(&facts);
    }
    return fflush(stdout) == 0 && ferror(stdout) == 0 ? 0 : 1;
}
