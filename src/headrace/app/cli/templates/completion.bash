# Completion of headrace for bash. In ~/.bashrc:  eval "$(headrace completion bash)"
_headrace() {
    local IFS=$'\n'
    COMPREPLY=($("${COMP_WORDS[0]}" completion --breaks "$COMP_WORDBREAKS" --line "${COMP_LINE:0:COMP_POINT}" 2>/dev/null))
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[/=] ]]; then compopt -o nospace 2>/dev/null; fi
}
complete -o default -F _headrace headrace
