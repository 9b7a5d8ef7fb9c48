#compdef headrace
# Completion of headrace for zsh. In ~/.zshrc, after compinit:  eval "$(headrace completion zsh)"
_headrace() {
    local line="${(j: :)words[1,CURRENT-1]} $PREFIX"
    local -a found
    found=(${(f)"$("${words[1]}" completion --line "$line" 2>/dev/null)"})
    if (( ! $#found )); then
        _files
    else
        compadd -S '' -- ${(M)found:#*[/=]}
        compadd -- ${found:#*[/=]}
    fi
}
compdef _headrace headrace
