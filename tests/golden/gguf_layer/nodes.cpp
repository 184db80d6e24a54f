// Writes nodes of llama.cpp's graph for windows of token ids, or the nll of its predictions.
//
//   nodes MODEL IDS WINDOWS WIDTH OUT PATTERN [nll=FILE] [fa=on|off] [ub=N] [repack=0] [threads=N]
//
// IDS: int32, WINDOWS rows of WIDTH. As many windows as a batch of 2048 holds are decoded at once, each a
// sequence of its own, as llama-perplexity does it. OUT: of each node whose whole name matches PATTERN,
// in the order in which they are computed, its name and its operation (int32 length, bytes), int64
// dimensions [4], the row's length first, and float32 values. nll: float64 nats of each window's targets
// from WIDTH / 2 + 1 on.
#include "ggml-backend.h"
#include "llama.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <regex>
#include <string>
#include <vector>

struct Wanted {
    FILE * out;
    std::regex names;
};

static void put(FILE * out, const char * text) {
    const int length = (int) strlen(text);
    fwrite(&length, sizeof(length), 1, out);
    fwrite(text, 1, length, out);
}

static bool computed(ggml_tensor * t, bool ask, void * data) {
    const auto * wanted = (const Wanted *) data;
    const bool matches = std::regex_match(t->name, wanted->names);
    if (ask || !matches) {
        return ask ? matches : true;
    }
    if (t->type != GGML_TYPE_F32) {
        fprintf(stderr, "%s is not in float32\n", t->name);
        exit(1);
    }
    std::vector<char> raw(ggml_nbytes(t));
    ggml_backend_tensor_get(t, raw.data(), 0, raw.size());
    put(wanted->out, t->name);
    put(wanted->out, ggml_op_name(t->op));
    fwrite(t->ne, sizeof(t->ne[0]), 4, wanted->out);
    for (int64_t l = 0; l < t->ne[3]; l++)
        for (int64_t k = 0; k < t->ne[2]; k++)
            for (int64_t j = 0; j < t->ne[1]; j++)
                for (int64_t i = 0; i < t->ne[0]; i++) {
                    const size_t at = i * t->nb[0] + j * t->nb[1] + k * t->nb[2] + l * t->nb[3];
                    fwrite(raw.data() + at, 4, 1, wanted->out);
                }
    return true;
}

static double nll_of(const float * logits, int entries, int target) {
    const float most = *std::max_element(logits, logits + entries);
    double sum = 0;
    for (int v = 0; v < entries; v++) sum += std::exp((double) logits[v] - most);
    return std::log(sum) + most - logits[target];
}

int main(int argc, char ** argv) {
    if (argc < 7) return 2;
    const int windows = atoi(argv[3]), width = atoi(argv[4]);
    Wanted wanted { fopen(argv[5], "wb"), std::regex(argv[6]) };
    auto of_model = llama_model_default_params();
    auto of_context = llama_context_default_params();
    of_context.n_ubatch = 512;
    of_context.n_threads = of_context.n_threads_batch = 2;
    FILE * scores = nullptr;
    for (int i = 7; i < argc; i++) {
        const std::string flag = argv[i], key = flag.substr(0, flag.find('='));
        const std::string value = flag.substr(std::min(flag.size(), key.size() + 1));
        if (key == "nll") scores = fopen(value.c_str(), "wb");
        else if (key == "fa") of_context.flash_attn_type =
            value == "on" ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
        else if (key == "ub") of_context.n_ubatch = std::stoi(value);
        else if (key == "repack") of_model.use_extra_bufts = value != "0";
        else if (key == "threads")
            of_context.n_threads = of_context.n_threads_batch = std::stoi(value);
        else return 2;
    }
    std::vector<llama_token> ids((size_t) windows * width);
    std::ifstream given(argv[2], std::ios::binary);
    if (!given.read((char *) ids.data(), ids.size() * sizeof(ids[0]))) return 1;

    llama_backend_init();
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    auto * model = llama_model_load_from_file(argv[1], of_model);
    if (!model) return 1;
    const int entries = llama_vocab_n_tokens(llama_model_get_vocab(model));
    const int at_once = std::max(1, 2048 / width);
    of_context.n_seq_max = at_once;
    of_context.n_ctx = of_context.n_batch = at_once * width;
    of_context.cb_eval = computed;
    of_context.cb_eval_user_data = &wanted;
    auto * context = llama_init_from_model(model, of_context);
    if (!context) return 1;
    for (int w = 0; w < windows; w += at_once) {
        const int n = std::min(at_once, windows - w);
        llama_memory_clear(llama_get_memory(context), true);
        auto batch = llama_batch_init(n * width, 0, 1);
        for (int s = 0; s < n; s++)
            for (int k = 0; k < width; k++) {
                const int i = batch.n_tokens++;
                batch.token[i] = ids[(size_t) (w + s) * width + k];
                batch.pos[i] = k;
                batch.n_seq_id[i] = 1;
                batch.seq_id[i][0] = s;
                batch.logits[i] = k >= width / 2;
            }
        if (llama_decode(context, batch)) return 1;
        llama_batch_free(batch);
        for (int s = 0; scores && s < n; s++)
            for (int k = width / 2; k < width - 1; k++) {
                const float * logits = llama_get_logits_ith(context, s * width + k);
                const double nll = nll_of(logits, entries, ids[(size_t) (w + s) * width + k + 1]);
                fwrite(&nll, sizeof(nll), 1, scores);
            }
    }
    if (fclose(wanted.out) || (scores && fclose(scores))) return 1;
}
