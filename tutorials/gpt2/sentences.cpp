#include "sentences.h"

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

namespace gpt2 {
namespace {

std::ifstream opened(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read the sentences of " + path);
  return file;
}

Sentences not_empty(Sentences sentences, const std::string& path) {
  if (sentences.empty()) throw std::runtime_error("there is no sentence in " + path);
  return sentences;
}

/// Calls `take` with each line that is not empty, and its number.
void each_line(const std::string& path,
               const std::function<void(std::string line, std::size_t number)>& take) {
  std::ifstream file = opened(path);
  std::size_t number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (!line.empty()) take(std::move(line), number);
  }
}

}  // namespace

Sentences text_sentences(const std::string& path) {
  Sentences sentences;
  each_line(path, [&](std::string line, std::size_t) { sentences.push_back(std::move(line)); });
  return not_empty(std::move(sentences), path);
}

Sentences json_lines_sentences(const std::string& path, const std::string& field) {
  Sentences sentences;
  each_line(path, [&](const std::string& line, std::size_t number) {
    const nlohmann::json json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains(field) || !json[field].is_string()) {
      throw std::runtime_error(path + ":" + std::to_string(number) +
                               " is no JSON object with a text '" + field +
                               "'; --field names the entry that holds the sentence");
    }
    sentences.push_back(json[field].get<std::string>());
  });
  return not_empty(std::move(sentences), path);
}

Sentences squad_contexts(const std::string& path) {
  std::ifstream file = opened(path);
  const nlohmann::json json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  Sentences sentences;
  try {
    for (const nlohmann::json& article : json.at("data")) {
      for (const nlohmann::json& paragraph : article.at("paragraphs")) {
        const std::size_t questions = paragraph.at("qas").size();
        sentences.insert(sentences.end(), questions, paragraph.at("context").get<std::string>());
      }
    }
  } catch (const nlohmann::json::exception&) {
    throw std::runtime_error(path +
                             " is no SQuAD: {\"data\": [{\"paragraphs\": [{\"context\": \"...\", "
                             "\"qas\": [...]}]}]}");
  }
  return not_empty(std::move(sentences), path);
}

}  // namespace gpt2
