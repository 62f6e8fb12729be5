// A server whose only state is in its memory: each request is answered with how many there were.
package main

import (
	"fmt"
	"net/http"
	"os"
	"sync/atomic"
)

func main() {
	var count atomic.Int64
	http.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "%d", count.Add(1))
	})
	fmt.Fprintln(os.Stderr, http.ListenAndServe(os.Args[1], nil))
	os.Exit(1)
}
