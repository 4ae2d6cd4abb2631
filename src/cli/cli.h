/* The subcommands. Each gets the words after its name and gives the program's exit code. */
#ifndef CLI_H
#define CLI_H

int race_main(int argc, char **argv);
int check_main(int argc, char **argv);
int cache_main(int argc, char **argv);
int variants_main(int argc, char **argv);
int info_main(int argc, char **argv);
int doctor_main(int argc, char **argv);
int tune_main(int argc, char **argv);

#endif
