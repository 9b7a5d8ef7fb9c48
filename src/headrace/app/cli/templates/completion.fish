# Completion of headrace for fish. In ~/.config/fish/config.fish:  headrace completion fish | source
function __headrace
    set -l words (commandline -opc)
    set -l found ($words[1] completion --line (commandline -cp | string collect) 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c headrace -f -a '(__headrace)'
