module delayserver.internal/ops/clients/go

go 1.19

require (
	github.com/vmihailenco/msgpack/v5 v5.4.1
	golang.org/x/sys v0.20.0
)

require github.com/vmihailenco/tagparser/v2 v2.0.0 // indirect
